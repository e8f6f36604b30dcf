"""The second routes of `verify`, which share no arithmetic with what certified."""
