"""What administrators do in the hub: messages, announcements, rules that stop new starts, and the acts themselves."""
