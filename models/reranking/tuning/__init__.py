"""Finding weights for a log-linear model over candidates, and telling whether they are worth having."""
