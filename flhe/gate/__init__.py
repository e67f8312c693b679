"""The gate of a site: a proxy before its SuperNode that lets out what the site has sealed."""
