"""What does a report draw? One module a chart: rows of an analyzer and how they lie on two axes; who draws them is not their business."""
