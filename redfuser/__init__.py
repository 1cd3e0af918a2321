"""RedFuser: a compiler that fuses cascaded reductions."""
