"""The forged parts beside this file are imported by the tests of every room; pytest puts this folder on the path."""
