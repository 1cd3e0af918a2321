"""What is known of expressions and operators before anything is derived: laws, kinds, normal forms, ranges, proofs."""
