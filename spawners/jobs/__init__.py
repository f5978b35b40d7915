"""What users do with their jobs from the hub: acts, output, efficiency, submitting again."""
