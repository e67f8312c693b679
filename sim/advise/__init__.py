"""Which scheme, for a federation that is described: predicted from a calibration of this machine."""
