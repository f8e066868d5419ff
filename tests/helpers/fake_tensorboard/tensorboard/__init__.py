"""A package in place of TensorBoard, whose program starts at once and has no page."""
