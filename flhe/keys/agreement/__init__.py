"""Key agreement of members through an untrusted relay."""
