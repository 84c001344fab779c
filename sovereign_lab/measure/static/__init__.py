"""What a compiler says of a kernel without running it: registers, occupancy, machine code."""
