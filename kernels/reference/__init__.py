"""What each kernel means, in NumPy and float64: slow, short, and the oracle of every twin."""
