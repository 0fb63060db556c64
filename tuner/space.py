"""Search spaces: knobs with type, range, condition and source, and the static rules that reject a point before launch."""
