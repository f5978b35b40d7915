"""Parts of the batch script that most starts do not need, so it takes them from the data document when it does."""
