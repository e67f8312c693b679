"""`flhe bench`: what encryption costs, beside what nobody can beat and what a user would pick instead."""
