"""Secrets shared among members, agreed through an untrusted relay."""
