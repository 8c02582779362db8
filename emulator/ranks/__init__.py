"""Many ranks of one program: where they are, what their collectives cost, which tracks they have."""
