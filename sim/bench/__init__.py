"""`flhe bench`: what encryption costs, beside what nobody can beat and what else one might use."""
