"""Updates of devices, from their arrival to the round that uses them."""
