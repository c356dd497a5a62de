"""What several tests share: real servers to measure, scripted ones, and what a machine must have for them."""
