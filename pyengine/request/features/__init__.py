"""The features of requests on the frontend's side, one file each."""
