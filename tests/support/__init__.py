"""What the tests of all parts share: a scripted model server, and a proxy that cuts database connections."""
