"""Behaviour tests of sessions: what agents really throw at a shell, one file for each class of trouble."""
