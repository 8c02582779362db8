"""What joins the chips of a machine, and which way do bytes go from one to another?"""
