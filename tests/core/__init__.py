"""The C extension through `swerex_c._core`: matcher, strip filter, frames, scanner, supervisor, lifetimes."""
