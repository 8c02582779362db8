"""Which messages does each algorithm send?"""
