"""How the microscope counts: a launch recorded, its accesses grouped into requests, and what these cost."""
