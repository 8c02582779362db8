"""What do the profiles of AWS's Neuron tools say? One module a question; the formats are explorer, system, device, summary and monitor."""
