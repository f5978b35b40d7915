"""The ledger in the database: writes in one transaction, reads for each question, sums that a trigger keeps."""
