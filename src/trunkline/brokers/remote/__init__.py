"""What every broker elsewhere needs, whatever it is: batches going out, feeds coming in, all of it resumed."""
