//! Tests of serving.
