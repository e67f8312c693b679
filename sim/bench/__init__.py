"""`flhe bench`: what encryption costs, beside what nobody can beat and what a user would pick instead.

Who takes part is a `Contender`: a name, what it does in each phase, and what is known of it. `measure`
times any number of them, in turns.
"""
