"""Several machines, several models, users: which machine serves which model, with how many replicas
and slots."""
