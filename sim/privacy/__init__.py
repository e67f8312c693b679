"""`flhe compare-privacy`: DP-SGD across sites beside Opacus on the pooled data, at equal epsilon."""
