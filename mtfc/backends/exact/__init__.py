"""Programs on residues modulo a prime, where layouts agree bit for bit or the compiler is wrong."""
