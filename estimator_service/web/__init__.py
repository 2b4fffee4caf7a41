"""What the metrics port serves: the metrics, health, and the status page."""
