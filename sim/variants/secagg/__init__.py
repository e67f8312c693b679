"""SecAgg and SecAgg+: pairwise masks on the vectors themselves, beside which SASH is measured."""
