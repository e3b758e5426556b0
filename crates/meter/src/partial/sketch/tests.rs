//! Tests of the sketch: bins hold what they should, quantiles are close.
