"""The processes that serve: the supervisor, its HTTP workers and the server in each."""
