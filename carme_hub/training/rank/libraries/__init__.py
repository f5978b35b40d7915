"""What libraries of the code need in a rank; each module hooks the import of one that a rank does not import itself."""
