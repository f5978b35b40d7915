"""The file page of a session: uploads that resume, archives made while they are downloaded, and the largest folders.

All of it runs in the session's server, as the session's user: the file system alone decides what may be read and
written, and neither the hub nor its services see a file. It needs Tornado, Jupyter Server and the standard library.
"""
