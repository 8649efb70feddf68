"""What operators see: metrics, traces, logs."""
