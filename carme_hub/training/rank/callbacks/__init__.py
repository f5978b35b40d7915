"""What makes the training loops of other libraries report their steps, without a change to the code that uses them."""
