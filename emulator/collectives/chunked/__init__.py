"""When does each chunk cross each link? Messages lowered to tasks, and scheduled."""
