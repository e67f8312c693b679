"""FLASHE: AES masks that telescope."""
