//! Tests of unique counts: exact when few, close when many.
