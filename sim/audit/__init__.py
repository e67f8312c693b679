"""`flhe audit`: what a gradient inversion makes of the part of an update that is left in clear."""
