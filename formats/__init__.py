"""External formats that several packages use. Pure: no disk, no configuration, no import of other packages."""
