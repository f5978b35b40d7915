"""``carme-hub image build`` in a session, and from outside of one: images of a user's own, built in a job."""
