"""The bucket shattering law, shown by the scheduler core itself. Every figure is simulated and says so."""
