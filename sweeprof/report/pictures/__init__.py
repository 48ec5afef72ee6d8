"""Pictures of one combination: each a pure function from what a pass saw to a description that is drawn twice."""
